package idalloc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const maxFileAge = time.Second

// loaded is a value that is made of files. If they are bad later, it stays.
type loaded[Value any] struct {
	paths []string // empty for a file that is not used
	parse func(contents []string) (Value, error)

	mu       sync.Mutex
	readAt   time.Time
	contents []string // of the value; nil before the first one
	value    Value
}

// load reads the files again after maxAge. Its value is nothing without files.
func (l *loaded[Value]) load(maxAge time.Duration) (value Value, err error) {
	if l == nil {
		return value, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.contents != nil && time.Since(l.readAt) < maxAge {
		return l.value, nil
	}
	l.readAt = time.Now()
	contents, err := readFiles(l.paths)
	if err == nil && (l.contents == nil || !slices.Equal(contents, l.contents)) {
		if value, err = l.parse(contents); err == nil {
			l.contents, l.value = contents, value
		}
	}
	if l.contents != nil {
		err = nil
	}
	return l.value, err
}

func readFiles(paths []string) ([]string, error) {
	contents := make([]string, len(paths))
	for i, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil && path != "" {
			return nil, fmt.Errorf("%w: check the path and its permissions", err)
		}
		contents[i] = string(text)
	}
	return contents, nil
}

func (files TLS) parse(contents []string) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: files.ServerName}
	if files.CAFile != "" {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM([]byte(contents[0])) {
			return nil, fmt.Errorf("CAFile: %s has no certificate in PEM: write that of the CA to it", files.CAFile)
		}
	}
	if files.CertFile != "" || files.KeyFile != "" {
		pair, err := tls.X509KeyPair([]byte(contents[1]), []byte(contents[2]))
		if err != nil {
			return nil, fmt.Errorf("CertFile %s and KeyFile %s: %w: write a certificate and its unencrypted private key to them, in PEM",
				files.CertFile, files.KeyFile, err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

func parseToken(source, content string) (string, error) {
	token := strings.TrimSpace(content)
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("%s is empty or has several lines: write one token in one line", source)
	}
	return token, nil
}

// bearer sends a token with each call.
type bearer struct {
	token    *loaded[string]
	needsTLS bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.token.load(maxFileAge)
	return map[string]string{"authorization": "Bearer " + token}, err
}

// RequireTransportSecurity keeps the token off the network without TLS.
func (b bearer) RequireTransportSecurity() bool { return b.needsTLS }
