package idalloc

import (
	"slices"
	"strings"
	"testing"

	"example.com/idalloc/client/go/idallocv1"
)

func TestExpandRisesByTheStep(t *testing.T) {
	const shared = "00076b0349c8"
	runs, count, err := newDocIDRuns([]*idallocv1.DocIdRun{{FirstDocId: shared + "fffffffffffffff5", Step: 5, IdCount: 3}}, 3, 3)
	if err != nil || count != 3 {
		t.Fatal(count, err)
	}
	want := []string{shared + "fffffffffffffff5", shared + "fffffffffffffffa", shared + "ffffffffffffffff"}
	if got := slices.Collect(runs[0].All()); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestInvalidRunsAreRejected(t *testing.T) {
	first := strings.Repeat("0", 27) + "1"
	for name, run := range map[string]*idallocv1.DocIdRun{
		"no ids":       {FirstDocId: first, Step: 1},
		"too many":     {FirstDocId: first, Step: 1, IdCount: 11},
		"step 0":       {FirstDocId: first, IdCount: 1},
		"short":        {FirstDocId: first[1:], Step: 1, IdCount: 1},
		"not a number": {FirstDocId: first[:27] + "x", Step: 1, IdCount: 1},
		"overflow":     {FirstDocId: strings.Repeat("f", 28), Step: 1, IdCount: 2},
		"far overflow": {FirstDocId: first, Step: 1 << 62, IdCount: 10},
	} {
		if checkRun(run, 10) == nil {
			t.Errorf("%s: accepted", name)
		}
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
