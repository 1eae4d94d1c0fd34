package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	idallocv1 "example.com/idalloc/client/go/idallocv1"
)

// connect returns a connection with the service's retry policy. It does not
// wait for the server: the first call connects.
func connect(server, caFile, tokenFile string) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", caFile)
		}
		transport = credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// Without it, only calls that never left the client are retried.
		grpc.WithDefaultServiceConfig(idallocv1.ServiceConfig),
		// The default lets a channel wait up to two minutes before it connects
		// again, although the server has long been back.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: callTimeout,
		}),
	}
	if tokenFile != "" {
		if caFile == "" && !isLoopback(server) {
			return nil, fmt.Errorf("a token is sent to %s only over TLS: add --ca", server)
		}
		text, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		token := bearer{token: strings.TrimSpace(string(text)), needsTLS: caFile != ""}
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	return grpc.NewClient(server, options...)
}

// bearer sends a token with each call.
type bearer struct {
	token    string
	needsTLS bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity keeps the token off the network without TLS.
func (b bearer) RequireTransportSecurity() bool { return b.needsTLS }

func isLoopback(server string) bool {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
