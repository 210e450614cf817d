// Package outbound has remote A2A agents serve in a fleet: those of the
// official SDK's own server, with scripts and faults, and those of another
// fleet's gateway.
package outbound
