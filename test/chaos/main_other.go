//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "chaos: this takes Linux: networks and disks of its own, and signals")
	os.Exit(1)
}
