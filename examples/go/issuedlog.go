package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	idallocv1 "example.com/idalloc/client/go/idallocv1"

	"example.com/orders/pool"
)

// issuedLog is the log in JSON lines that `idalloc verify` reads: a record of
// each range that arrived, written before its ids are used. It survives a kill
// of the process, as each record is one write to the file. A nil *issuedLog
// records nothing.
type issuedLog struct {
	clock pool.Clock
	start time.Duration // the clock's zero, since 1970

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
	clock := pool.BootClock()
	l := &issuedLog{clock: clock, start: time.Duration(time.Now().UnixNano()) - clock(), file: file}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return l, l.write(header{Format: 2, BootTime: int64(l.start), Client: fmt.Sprintf("%s %d", host, os.Getpid())})
}

// now returns nanoseconds since 1970, on a clock that cannot be set.
func (l *issuedLog) now() int64 {
	if l == nil {
		return 0
	}
	return int64(l.start + l.clock())
}

// ids records a range. asked is now() before its request was sent.
func (l *issuedLog) ids(sequence, requestID string, reply rangeReply, asked int64) error {
	if l == nil {
		return nil
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
	if l == nil {
		return nil
	}
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

func (l *issuedLog) close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
