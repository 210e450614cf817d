// Package mcp holds the fleet's MCP server against the official SDK's client,
// over both transports, with a whole fleet behind it on a real NATS server.
package mcp
