package idalloc

import (
	"cmp"
	"context"
	"io"
	"iter"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"example.com/idalloc/client/go/idallocv1"
)

// replica starts a server of the service on an address of its own.
func (s *service) replica(t *testing.T, address string, options ...grpc.ServerOption) (*grpc.Server, string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err) // a system with only one loopback address
	}
	server := grpc.NewServer(options...)
	idallocv1.RegisterIdAllocatorServiceServer(server, s)
	s.hosts = append(s.hosts, &host{Listener: listener})
	go server.Serve(s.hosts[len(s.hosts)-1])
	t.Cleanup(server.Stop)
	return server, listener.Addr().String()
}

// host is a listener whose server hangs while the lock is held.
type host struct {
	net.Listener
	sync.RWMutex
}

type hostConn struct {
	net.Conn
	host *host
}

func (h *host) Accept() (net.Conn, error) {
	conn, err := h.Listener.Accept()
	return hostConn{conn, h}, err
}

func (c hostConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	c.host.RLock()
	defer c.host.RUnlock()
	return n, err
}

// front starts a proxy. serve ends the connection with a number, or returns the
// address to which it goes.
func front(t *testing.T, serve func(number int, conn *net.TCPConn) string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for number := 1; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				server, err := net.Dial("tcp", serve(number, conn.(*net.TCPConn)))
				if err == nil {
					go io.Copy(server, conn)
					io.Copy(conn, server)
				}
				conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// names has the addresses of names that end with ".test".
var names sync.Map

func init() {
	former := lookUp
	lookUp = func(ctx context.Context, network, name string) (ips []net.IP, err error) {
		known, ok := names.Load(name)
		if !ok {
			return former(ctx, network, name)
		}
		for _, ip := range known.([]string) {
			ips = append(ips, net.ParseIP(ip))
		}
		return ips, nil
	}
}

// use takes ids in some goroutines until stop is called, which returns them.
func use(t *testing.T, pool *Pool) (stop func() []int64) {
	const goroutines = 4
	got := make([][]int64, goroutines)
	var group sync.WaitGroup
	done := make(chan struct{})
	for i := range goroutines {
		group.Go(func() {
			for id, err := range pool.All(t.Context()) {
				if err != nil {
					t.Error(err)
					return
				}
				got[i] = append(got[i], id)
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	return func() []int64 {
		close(done)
		group.Wait()
		return slices.Concat(got...)
	}
}

// drain returns the ids of ranges or runs, and their error.
func drain[ID any, Item interface{ All() iter.Seq[ID] }](items iter.Seq2[Item, error]) (ids []ID, err error) {
	for each, err := range items {
		if err != nil {
			return ids, err
		}
		ids = slices.AppendSeq(ids, each.All())
	}
	return ids, nil
}

func unique[ID cmp.Ordered](t *testing.T, ids []ID, atLeast int) {
	t.Helper()
	taken := len(ids)
	slices.Sort(ids)
	if distinct := len(slices.Compact(ids)); distinct != taken || taken < atLeast {
		t.Errorf("%d ids, %d distinct", taken, distinct)
	}
}

// await waits until the service got more calls.
func await(t *testing.T, s *service, calls int) {
	t.Helper()
	awaitCall(t, s, s.count()+calls)
}

// awaitCall waits until the service got the call with a number.
func awaitCall(t *testing.T, s *service, call int) {
	t.Helper()
	eventually(t, func() bool { return s.count() >= call })
}

func eventually(t *testing.T, isTrue func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !isTrue(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s")
		}
	}
}

func TestAPoolOutlastsARollingRestartWithNewAddresses(t *testing.T) {
	service := newService(nil)
	service.ttl = 20 * time.Millisecond // many calls
	first, address := service.replica(t, "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(address)
	second, _ := service.replica(t, "127.0.0.3:"+port)
	names.Store("rolling.test", []string{"127.0.0.2", "127.0.0.3"})
	stop := use(t, open(t, "dns:///rolling.test:"+port).Pool("orders"))
	await(t, service, 5)
	names.Store("rolling.test", []string{"127.0.0.4", "127.0.0.5", "127.0.0.4"})
	for _, ip := range []string{"127.0.0.4", "127.0.0.5"} {
		service.replica(t, ip+":"+port)
	}
	first.Stop()
	second.Stop()
	await(t, service, 5)
	unique(t, stop(), 10)
}

func TestAPoolUsesTheServerThatIsLeft(t *testing.T) {
	service := newService(nil)
	service.ttl = 20 * time.Millisecond
	first, one := service.replica(t, "127.0.0.1:0")
	second, other := service.replica(t, "127.0.0.1:0")
	stop := use(t, open(t, one+","+other).Pool("orders"))
	await(t, service, 5)
	first.Stop()
	await(t, service, 5)
	service.replica(t, one)
	second.Stop()
	await(t, service, 5)
	unique(t, stop(), 10)
}
