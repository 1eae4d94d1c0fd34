package idalloc

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// bearer sends a token with each call.
type bearer struct {
	token    *token
	needsTLS bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	text, err := b.token.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity keeps the token off the network without TLS.
func (b bearer) RequireTransportSecurity() bool { return b.needsTLS }

// token is a constant, or in a file that is read again at most once a second
// while servers accept it.
type token struct {
	path   string // empty for a constant
	mu     sync.Mutex
	readAt time.Time
	text   string
}

// read returns the token. If the file cannot be read, the former one stays.
func (t *token) read() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text != "" && time.Since(t.readAt) < time.Second {
		return t.text, nil
	}
	t.readAt = time.Now()
	content, err := []byte(t.text), error(nil)
	if t.path != "" {
		content, err = os.ReadFile(t.path)
	}
	switch text := strings.TrimSpace(string(content)); {
	case text != "" && !strings.ContainsAny(text, "\r\n"):
		t.text = text
	case t.text != "" && t.path != "":
	case err != nil:
		return "", fmt.Errorf("%w: check the path and its permissions", err)
	default:
		return "", fmt.Errorf("%s is empty or has several lines: write one token in one line", cmp.Or(t.path, "the value"))
	}
	return t.text, nil
}

// last returns the token that a call sends now, or nothing without one.
func (t *token) last() (text string) {
	if t != nil {
		text, _ = t.read()
	}
	return text
}

// isReplaced returns whether err rejects the token that was sent, and the file now
// has another one.
func (t *token) isReplaced(err error, sent string) bool {
	if t == nil || err == nil || errorOf(err).Code != codes.Unauthenticated {
		return false
	}
	t.mu.Lock()
	t.readAt = time.Time{}
	t.mu.Unlock()
	return t.last() != sent
}
