// Command orders gets ids from an idalloc server in six ways, and prints a line
// for each: one by one from a pool, one range, several requests over one stream,
// one range under a request_id, a stream of ranges, and a stream of document ids.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	idalloc "example.com/idalloc/client/go"
)

type arguments struct {
	server, caFile, tokenFile, sequence, logFile string
	total                                        int64
}

func main() {
	args, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(texts []string) (arguments, error) {
	var args arguments
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.StringVar(&args.server, "server", "127.0.0.1:50051", "`HOST:PORT` of the server")
	flags.StringVar(&args.caFile, "ca", "", "`FILE` with the CA certificate of the server, in PEM; enables TLS")
	flags.StringVar(&args.tokenFile, "token-file", "", "`FILE` with the token to send")
	flags.StringVar(&args.sequence, "sequence", "orders", "`NAME` of the sequence")
	flags.Int64Var(&args.total, "total", 100_000, "how many ids the pool and each stream take")
	flags.StringVar(&args.logFile, "log", "", "new `FILE.jsonl` for a record of each range, for idalloc verify")
	err := flags.Parse(texts)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
		fmt.Fprintln(os.Stderr, err)
	}
	if err == nil && args.total < 1 {
		err = fmt.Errorf("--total is %d; expected at least 1", args.total)
		fmt.Fprintln(os.Stderr, err)
	}
	return args, err
}

func run(ctx context.Context, args arguments) (err error) {
	var options []idalloc.Option
	if args.caFile != "" {
		options = append(options, idalloc.WithTLS(idalloc.TLS{CAFile: args.caFile}))
	}
	if args.tokenFile != "" {
		options = append(options, idalloc.WithTokenFile(args.tokenFile))
	}
	if args.logFile != "" {
		log, err := createLog(args.logFile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, log.close()) }()
		options = append(options, idalloc.WithDialOptions(log.interceptors()...))
	}
	client, err := idalloc.New(args.server, options...)
	if err != nil {
		return err
	}
	defer client.Close()
	p := &program{
		client:   client,
		sequence: args.sequence,
		total:    args.total,
		out: func(way string, count int64, first, last any) {
			fmt.Printf("%s: %d ids, %v..%v\n", way, count, first, last)
		},
	}
	return p.run(ctx)
}
