package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"example.com/idalloc/client/go/idallocv1"
)

// issuedLog is the log in JSON lines that `idalloc verify` reads: a record of
// each range that arrived, written before its ids are used. It survives a kill
// of the process, as each record is one write to the file.
type issuedLog struct {
	start    time.Time
	requests sync.Map // the request ids that were recorded

	mu   sync.Mutex
	file *os.File
	size int64 // of complete records
}

type header struct {
	Format     int    `json:"idalloc_log"`
	BootID     string `json:"boot_id"` // empty: times are compared within this log only
	BootTime   int64  `json:"boot_time_ns"`
	BootOffset *int64 `json:"boot_offset_ns"`
	Client     string `json:"client"`
}

type rangeRecord struct {
	Sequence   string `json:"sequence"`
	Period     string `json:"period,omitempty"`
	Generation int64  `json:"generation"`
	First      int64  `json:"first"`
	Step       int64  `json:"step"`
	Count      int64  `json:"count"`
	Node       int64  `json:"node,omitempty"`
	Rising     bool   `json:"rising,omitempty"`
	RequestID  string `json:"request_id,omitempty"`
	Asked      int64  `json:"asked"`
	Answered   int64  `json:"answered"`
}

type docIDRecord struct {
	DocID    string `json:"doc_id"`
	Step     int64  `json:"step"`
	Count    int64  `json:"count"`
	Asked    int64  `json:"asked"`
	Answered int64  `json:"answered"`
}

// rangeReply is what AllocateRange and StreamRanges return alike.
type rangeReply interface {
	GetRange() *idallocv1.IdRange
	GetGeneration() int64
	GetOrdering() idallocv1.Ordering
	GetPeriod() string
	GetNodeId() int64
}

// createLog creates the file, which must not exist.
func createLog(path string) (*issuedLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &issuedLog{start: time.Now(), file: file}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return l, l.write(header{Format: 2, BootTime: l.start.UnixNano(), Client: fmt.Sprintf("%s %d", host, os.Getpid())})
}

// now returns nanoseconds since 1970, on a clock that cannot be set. It stops
// while the machine sleeps.
func (l *issuedLog) now() int64 { return l.start.UnixNano() + int64(time.Since(l.start)) }

// interceptors returns options of gRPC that record each reply before the client
// sees it. A reply that cannot be recorded is an error, so that its ids are not
// used.
func (l *issuedLog) interceptors() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

func (l *issuedLog) unary(
	ctx context.Context, method string, request, reply any,
	connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	asked := l.now()
	if err := invoke(ctx, method, request, reply, connection, options...); err != nil {
		return err
	}
	if allocate, isRange := request.(*idallocv1.AllocateRangeRequest); isRange {
		return l.ids(allocate.GetSequence(), allocate.GetRequestId(), reply.(rangeReply), asked)
	}
	return nil
}

func (l *issuedLog) stream(
	ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn,
	method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	asked := l.now()
	stream, err := open(ctx, description, connection, method, options...)
	return &loggedStream{ClientStream: stream, log: l, asked: asked}, err
}

// loggedStream records the replies of a stream.
type loggedStream struct {
	grpc.ClientStream
	log      *issuedLog
	asked    int64
	sequence string
	requests sync.Map // those of AllocateStream without an answer, by their number
}

// asking is a request that was sent.
type asking struct {
	sequence, requestID string
	asked               int64
}

func (s *loggedStream) SendMsg(message any) error {
	switch request := message.(type) {
	case *idallocv1.StreamRangesRequest:
		s.sequence = request.GetSequence()
	case *idallocv1.AllocateStreamRequest:
		allocate := request.GetAllocateRange() // nil, if it asks for document ids
		s.requests.Store(request.GetNumber(), asking{allocate.GetSequence(), allocate.GetRequestId(), s.log.now()})
	}
	return s.ClientStream.SendMsg(message)
}

func (s *loggedStream) RecvMsg(message any) error {
	if err := s.ClientStream.RecvMsg(message); err != nil {
		return err
	}
	switch reply := message.(type) {
	case rangeReply:
		return s.log.ids(s.sequence, "", reply, s.asked)
	case *idallocv1.StreamDocIdsResponse:
		return s.log.docIDs(reply.GetRuns(), s.asked)
	case *idallocv1.AllocateStreamResponse:
		if found, ok := s.requests.LoadAndDelete(reply.GetNumber()); ok {
			return s.answered(found.(asking), reply)
		}
	}
	return nil
}

// answered records an answer of AllocateStream, which may also be an error.
func (s *loggedStream) answered(request asking, answer *idallocv1.AllocateStreamResponse) error {
	if reply := answer.GetAllocateRange(); reply != nil {
		return s.log.ids(request.sequence, request.requestID, reply, request.asked)
	}
	return s.log.docIDs(answer.GetGenerateDocId().GetRuns(), request.asked)
}

// ids records a range. asked is now() before its request was sent.
func (l *issuedLog) ids(sequence, requestID string, reply rangeReply, asked int64) error {
	if requestID != "" {
		if _, isRecorded := l.requests.LoadOrStore(requestID, true); isRecorded {
			return nil // the same ids again
		}
	}
	ids := reply.GetRange()
	return l.write(rangeRecord{
		Sequence: sequence, Period: reply.GetPeriod(), Generation: reply.GetGeneration(),
		First: ids.GetFirstId(), Step: ids.GetStep(), Count: ids.GetIdCount(), Node: reply.GetNodeId(),
		Rising:    reply.GetOrdering() == idallocv1.Ordering_ORDERING_RISING,
		RequestID: requestID, Asked: asked, Answered: l.now(),
	})
}

// docIDs records a message of document ids, one record for each run.
func (l *issuedLog) docIDs(runs []*idallocv1.DocIdRun, asked int64) error {
	answered, records := l.now(), make([]any, len(runs))
	for i, run := range runs {
		records[i] = docIDRecord{run.GetFirstDocId(), run.GetStep(), run.GetIdCount(), asked, answered}
	}
	return l.write(records...)
}

// write appends all records, or none with an error.
func (l *issuedLog) write(records ...any) error {
	var lines []byte
	for _, record := range records {
		line, err := json.Marshal(record)
		if err != nil {
			return err
		}
		lines = append(append(lines, line...), '\n')
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(lines); err != nil {
		// A torn record would make the next one unreadable.
		if truncated := l.file.Truncate(l.size); truncated != nil {
			return fmt.Errorf("%w; %w", err, truncated)
		}
		return err
	}
	l.size += int64(len(lines))
	return nil
}

func (l *issuedLog) close() error { return l.file.Close() }
