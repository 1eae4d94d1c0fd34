// The limit of a service in Go: a server that answers AllocateRange with a
// constant message. It prints its address and serves until it is stopped.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	idallocv1 "example.com/idalloc/client/go/idallocv1"
)

type noop struct {
	idallocv1.UnimplementedIdAllocatorServiceServer
}

// AllocateRange returns the reply of bench/noop.py. The call makes it
// again, as a service does that fills it.
func (noop) AllocateRange(context.Context, *idallocv1.AllocateRangeRequest) (*idallocv1.AllocateRangeResponse, error) {
	return &idallocv1.AllocateRangeResponse{
		Range:      &idallocv1.IdRange{FirstId: 2_000_000, LastId: 2_000_000, Step: 1, IdCount: 1},
		Generation: 1,
		Ordering:   idallocv1.Ordering_ORDERING_RISING_PER_NODE,
		Ttl:        durationpb.New(179_123_456 * time.Microsecond),
	}, nil
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	idallocv1.RegisterIdAllocatorServiceServer(server, noop{})
	fmt.Printf("{\"address\": %q}\n", listener.Addr())
	log.Fatal(server.Serve(listener))
}
