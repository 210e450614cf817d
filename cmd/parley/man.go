package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a directory", Args: cobra.ExactArgs(1),
		Long:    `Write the manual pages of all commands into a directory, which is made if need be.`,
		Example: `  parley man ~/.local/share/man/man1     then: man parley-task-send`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // for everybody to read
				return usage("make the directory: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // pages of the same program are the same
			header := &doc.GenManHeader{Title: "PARLEY", Section: "1", Source: "parley " + version, Manual: "Parley"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return failed("write the manual pages: %w", err)
			}
			return nil
		},
	}
}
