// Flux packs a folder as Flux's source-controller packs a Git repository, and unpacks it as its other controllers do:
// flux FOLDER TARGET.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/artifact/config"
	"github.com/fluxcd/pkg/artifact/storage"
	"github.com/fluxcd/pkg/sourceignore"
	"github.com/fluxcd/pkg/tar"
)

func pack(folder, target string) error {
	scratch, err := os.MkdirTemp("", "flux")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	store, err := storage.New(&config.Options{StoragePath: scratch, StorageAdvAddress: "localhost:80"})
	if err != nil {
		return err
	}
	artifact := meta.Artifact{Path: "source.tar.gz"}
	// As the reconciler of GitRepository does.
	domain := strings.Split(folder, string(filepath.Separator))
	patterns, err := sourceignore.LoadIgnorePatterns(folder, domain)
	if err != nil {
		return err
	}
	if err := store.Archive(&artifact, folder, storage.SourceIgnoreFilter(patterns, domain)); err != nil {
		return err
	}
	packed, err := os.Open(filepath.Join(scratch, artifact.Path))
	if err != nil {
		return err
	}
	defer packed.Close()
	return tar.Untar(packed, target, tar.WithMaxUntarSize(-1))
}

func main() {
	if err := pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
