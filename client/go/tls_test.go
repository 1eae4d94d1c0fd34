package idalloc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// newCertificate writes a certificate that is its own CA, and its key.
func newCertificate(t *testing.T, folder, name string, expiry time.Duration) (TLS, *tls.Config) {
	t.Helper()
	private, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), IPAddresses: []net.IP{net.ParseIP(name)}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(expiry),
	}
	der, _ := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	key, _ := x509.MarshalPKCS8PrivateKey(private)
	ca := write(folder, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	files := TLS{CAFile: ca, CertFile: ca}
	files.KeyFile = write(folder, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	pair, err := tls.LoadX509KeyPair(ca, files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return files, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
}

func write(folder, name, text string) string {
	path := filepath.Join(folder, name)
	os.WriteFile(path, []byte(text), 0o600)
	return path
}

// replicaTLS starts a server that reads its settings at each connection.
func replicaTLS(t *testing.T, service *service, settings func() *tls.Config) string {
	_, address := service.replica(t, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(&tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return settings(), nil },
	})))
	return address
}

func TestATLSFailureSaysItsCause(t *testing.T) {
	_, plain := newService(nil).replica(t, "127.0.0.1:0")
	good, settings := newCertificate(t, t.TempDir(), "127.0.0.1", time.Hour)
	other, _ := newCertificate(t, t.TempDir(), "127.0.0.1", time.Hour)
	expired, expiredSettings := newCertificate(t, t.TempDir(), "127.0.0.1", -time.Minute)
	named, namedSettings := newCertificate(t, t.TempDir(), "127.0.0.2", time.Hour)
	strict := settings.Clone()
	strict.ClientAuth = tls.RequireAnyClientCert
	var group sync.WaitGroup
	for _, wrong := range []struct {
		kind     string
		settings *tls.Config
		caFile   string
	}{
		{"untrusted", settings, other.CAFile}, {"expired", expiredSettings, expired.CAFile}, {"closed", settings, ""},
		{"name", namedSettings, named.CAFile}, {"plaintext", nil, good.CAFile}, {"closed", strict, good.CAFile},
	} {
		group.Go(func() {
			target, option := plain, WithTLS(TLS{CAFile: wrong.caFile})
			if wrong.settings != nil {
				target = replicaTLS(t, newService(nil), func() *tls.Config { return wrong.settings })
			}
			if wrong.caFile == "" {
				option = WithTimeout(30 * time.Second)
			}
			_, err := open(t, target, option).AllocateRange(t.Context(), "orders", 1)
			if e, _ := err.(*Error); e == nil || e.Metadata["tls"] != wrong.kind || !e.Retryable() || e.Reason != ErrServerUnreachable {
				t.Errorf("%s: got %v", wrong.kind, err)
			}
		})
	}
	group.Wait()
}

func TestABadFileIsAnErrorOfNew(t *testing.T) {
	folder := t.TempDir()
	good, _ := newCertificate(t, folder, "127.0.0.1", time.Hour)
	other, _ := newCertificate(t, t.TempDir(), "127.0.0.1", time.Hour)
	missing, text, lines := filepath.Join(folder, "missing"), write(folder, "text", " \n"), write(folder, "lines", "a\nb\n")
	encrypted := write(folder, "encrypted", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
	var options []Option
	var paths []string
	for _, bad := range []TLS{
		{CAFile: missing}, {CAFile: folder}, {CAFile: text}, {CAFile: good.KeyFile},
		{KeyFile: missing, CertFile: good.CertFile}, {KeyFile: good.CertFile, CertFile: good.CertFile},
		{KeyFile: other.KeyFile, CertFile: good.CertFile}, {KeyFile: encrypted, CertFile: good.CertFile},
		{CertFile: good.KeyFile, KeyFile: good.KeyFile}, {CertFile: good.CertFile},
	} {
		options, paths = append(options, WithTLS(bad)), append(paths, bad.CAFile+bad.KeyFile)
	}
	for _, path := range []string{missing, folder, text, lines} {
		options, paths = append(options, WithTokenFile(path)), append(paths, path)
	}
	for i, option := range append(options, WithToken(" ")) {
		_, err := New("127.0.0.1:1", option)
		e := is(t, err, ErrInvalidConfig)
		if e.Retryable() || i < len(paths) && !strings.Contains(e.Message, paths[i]) {
			t.Errorf("got %v", e)
		}
	}
}

func TestNewCertificatesAreForNewCalls(t *testing.T) {
	folder, service, release := t.TempDir(), newService(nil), make(chan struct{})
	var current atomic.Pointer[tls.Config]
	files, settings := newCertificate(t, folder, "127.0.0.1", time.Hour)
	current.Store(settings)
	service.fail = func(_ context.Context, call int) error {
		if call == 2 { // the second message of the stream
			<-release
		}
		return nil
	}
	streams := 0
	client := open(t, replicaTLS(t, service, current.Load), WithTLS(files), WithObserver(func(event Event) {
		if event.Method == "StreamRanges" {
			streams++
		}
	}))
	for ids, err := range client.StreamRanges(t.Context(), "orders", 2, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if ids.First == 1 {
			former := client.servers.settings
			_, settings := newCertificate(t, folder, "127.0.0.1", time.Hour)
			current.Store(settings)
			eventually(t, func() bool {
				_, err := client.AllocateRange(t.Context(), "others", 1)
				return err == nil && client.servers.settings != former
			})
			close(release)
		}
	}
	if streams != 1 {
		t.Errorf("the stream was opened %d times", streams)
	}
}
