// Command goproxy writes a module as a Go module proxy serves it: a folder for
// GOPROXY=file://FOLDER. The same files always give the same bytes.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	version := flag.String("version", "", "the `VERSION`, such as v1.2.3")
	isTest := flag.Bool("test", false, "append a hash of the files, since Go sees no change within a version")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: goproxy -version VERSION [-test] MODULE PROXY")
		os.Exit(2)
	}
	written, err := write(flag.Arg(0), flag.Arg(1), *version, *isTest)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(written)
}

// write adds the module in a folder to a proxy, and returns path@version.
func write(folder, proxy, version string, isTest bool) (string, error) {
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", err
	}
	m := module.Version{Path: modfile.ModulePath(mod), Version: version}
	archive, err := pack(m, folder)
	if err == nil && isTest {
		m.Version += fmt.Sprintf("-test.h%x", sha256.Sum256(archive))[:19]
		archive, err = pack(m, folder)
	}
	if err != nil {
		return "", err
	}
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return "", err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{m.Version, time.Unix(0, 0).UTC()})
	if err != nil {
		return "", err
	}
	target := filepath.Join(proxy, escaped, "@v")
	if err := os.MkdirAll(target, 0o755); err != nil {
		return "", err
	}
	for name, data := range map[string][]byte{
		"list": []byte(m.Version + "\n"), m.Version + ".info": info, m.Version + ".mod": mod, m.Version + ".zip": archive,
	} {
		if err := os.WriteFile(filepath.Join(target, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return m.String(), nil
}

func pack(m module.Version, folder string) ([]byte, error) {
	var archive bytes.Buffer
	err := zip.CreateFromDir(&archive, m, folder)
	return archive.Bytes(), err
}
