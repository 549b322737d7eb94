// Filesd is the MCP server of file trees as a program of its own: it serves the trees in the folder that it is given on its
// standard input and output, and alike on the Unix socket "socket" in that folder, until the input ends. It says "ready" when it
// does. Built with CGO_ENABLED=0 it needs nothing else in a container. See files.Serve.
//
//	filesd FOLDER
package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/mcpgym/mcpgym/sandboxes/files"
)

// memory is what it takes before it rather works harder, in bytes. Its container has twice as much, which holds files as well.
const memory = 1 << 30

func main() {
	debug.SetMemoryLimit(memory)
	debug.SetGCPercent(1000) // its heap is small, and a collection would stop somebody every few calls
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "filesd:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one folder, have %d", len(args))
	}
	home := args[0]
	l, err := net.Listen("unix", filepath.Join(home, "socket"))
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // as at the end
			}
			go func() {
				if err := files.Serve(home, c, c); err != nil {
					fmt.Fprintln(os.Stderr, "filesd:", err)
				}
				c.Close()
			}()
		}
	}()
	fmt.Println("ready")
	return files.Serve(home, os.Stdin, os.Stdout)
}
