package idalloc

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver/dns"

	"example.com/idalloc/client/go/idallocv1"
)

// replica starts a server of the service on an address of its own.
func (s *service) replica(t *testing.T, address string) (*grpc.Server, string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(err) // a system with only one loopback address
	}
	server := grpc.NewServer()
	idallocv1.RegisterIdAllocatorServiceServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return server, listener.Addr().String()
}

// names is a DNS server whose only name has changing addresses.
type names struct{ addresses atomic.Pointer[[]string] }

func (n *names) set(addresses ...string) { n.addresses.Store(&addresses) }

func (n *names) serve(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buffer := make([]byte, 4096); ; {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(buffer[:size]) != nil {
				continue
			}
			query.Response, query.Additionals = true, nil
			for _, question := range query.Questions {
				if question.Type != dnsmessage.TypeA {
					continue
				}
				for _, address := range *n.addresses.Load() {
					query.Answers = append(query.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class, TTL: 1},
						Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
					})
				}
			}
			packed, _ := query.Pack()
			conn.WriteTo(packed, from)
		}
	}()
	return conn.LocalAddr().String()
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

func unique(t *testing.T, ids []int64, atLeast int) {
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
	dns.SetMinResolutionInterval(10 * time.Millisecond) // else 30 s
	service, zone := newService(), &names{}
	service.ttl = 20 * time.Millisecond // many calls
	old, address := service.replica(t, "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(address)
	zone.set("127.0.0.2")
	client, err := New("dns://" + zone.serve(t) + "/idalloc.test:" + port)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stop := use(t, client.Pool("orders"))
	await(t, service, 5)
	for _, ip := range []string{"127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		next, _ := service.replica(t, ip+":"+port)
		zone.set(ip)
		old.Stop()
		old = next
		await(t, service, 5)
	}
	unique(t, stop(), 10)
}

func TestAPoolUsesTheServerThatIsLeft(t *testing.T) {
	service := newService()
	service.ttl = 20 * time.Millisecond
	first, one := service.replica(t, "127.0.0.1:0")
	second, other := service.replica(t, "127.0.0.1:0")
	client, err := New(one + "," + other)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stop := use(t, client.Pool("orders"))
	await(t, service, 5)
	first.Stop()
	await(t, service, 5)
	service.replica(t, one)
	second.Stop()
	await(t, service, 5)
	unique(t, stop(), 10)
}
