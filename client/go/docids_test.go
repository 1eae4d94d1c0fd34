package idalloc

import (
	"slices"
	"strings"
	"testing"

	"example.com/idalloc/client/go/idallocv1"
)

func TestExpandRisesByTheStep(t *testing.T) {
	const shared = "00076b0349c8"
	runs, count, err := newDocIDRuns([]*idallocv1.DocIdRun{{FirstDocId: shared + "fffffffffffffff5", Step: 5, IdCount: 3}}, 3, 3, nil)
	if err != nil || count != 3 {
		t.Fatal(count, err)
	}
	want := []string{shared + "fffffffffffffff5", shared + "fffffffffffffffa", shared + "ffffffffffffffff"}
	if got := slices.Collect(runs[0].All()); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func BenchmarkExpand(b *testing.B) {
	run := DocIDRun{First: strings.Repeat("0", 28), Step: 1, Count: 10_000}
	var last string
	for b.Loop() {
		for id := range run.All() {
			last = id
		}
	}
	if last == "" {
		b.Error("no ids")
	}
	b.ReportMetric(float64(b.N)*1e4/b.Elapsed().Seconds(), "ids/s")
}

func TestTheZeroRunHasNoIds(t *testing.T) {
	for id := range (DocIDRun{}).All() {
		t.Errorf("got %q", id)
	}
}
