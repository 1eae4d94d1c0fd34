// Command goproxy writes a module as a Go module proxy serves it: a folder for
// GOPROXY=file://FOLDER. The same files always give the same bytes.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	version := flag.String("version", "", "the `VERSION` of a folder, such as v1.2.3")
	isTest := flag.Bool("test", false, "append a hash of the files, since Go sees no change within a version")
	tag := flag.String("tag", "", "write a release: the `TAG` of the repository, such as client/go/v1.2.3")
	flag.Parse()
	if flag.NArg() != 2 || (*tag == "") == (*version == "") {
		fmt.Fprintln(os.Stderr, "usage: goproxy -version VERSION [-test] MODULE PROXY")
		fmt.Fprintln(os.Stderr, "       goproxy -tag TAG REPOSITORY PROXY")
		os.Exit(2)
	}
	var files source
	var err error
	if *tag == "" {
		files, err = fromFolder(flag.Arg(0), *version)
	} else {
		files, err = fromTag(flag.Arg(0), *tag)
	}
	var written string
	if err == nil {
		written, err = write(files, flag.Arg(1), *isTest)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(written)
}

// source has the files of a version.
type source struct {
	version string
	mod     []byte // go.mod
	zip     func(w io.Writer, m module.Version) error
}

// fromFolder returns the files of a folder as they are.
func fromFolder(folder, version string) (source, error) {
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	return source{version, mod, func(w io.Writer, m module.Version) error {
		return zip.CreateFromDir(w, m, folder)
	}}, err
}

// fromTag returns the files that Go finds by a tag: those of the folder in its
// name, and the repository's LICENSE if the folder has none.
func fromTag(repository, tag string) (source, error) {
	root, err := filepath.Abs(repository)
	if err != nil {
		return source{}, err
	}
	folder, version := path.Split(tag)
	revision := "refs/tags/" + tag
	show := exec.Command("git", "-C", root, "show", revision+":"+folder+"go.mod")
	show.Stderr = os.Stderr
	mod, err := show.Output()
	return source{version, mod, func(w io.Writer, m module.Version) error {
		return zip.CreateFromVCS(w, m, root, revision, path.Clean(folder))
	}}, err
}

// write adds a version of a module to a proxy, and returns path@version.
func write(files source, proxy string, isTest bool) (string, error) {
	m := module.Version{Path: modfile.ModulePath(files.mod), Version: files.version}
	archive, err := pack(m, files)
	if err == nil && isTest {
		m.Version += fmt.Sprintf("-test.h%x", sha256.Sum256(archive))[:19]
		archive, err = pack(m, files)
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
		"list": []byte(m.Version + "\n"), m.Version + ".info": info, m.Version + ".mod": files.mod, m.Version + ".zip": archive,
	} {
		if err := os.WriteFile(filepath.Join(target, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return m.String(), nil
}

func pack(m module.Version, files source) ([]byte, error) {
	var archive bytes.Buffer
	err := files.zip(&archive, m)
	return archive.Bytes(), err
}
