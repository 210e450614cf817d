// Command parley runs a fleet of agents on NATS JetStream, dispatches tasks to
// it, and shows what becomes of them. Each command is in the file of its name;
// config.go alone reads the environment, wire.go alone knows every package.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the zones of schedules, where the machine or the image has no files of them
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, process{
		args: os.Args[1:], environ: os.Environ(), settings: readEnviron,
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
	}))
}
