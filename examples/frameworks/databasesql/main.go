// Command orders inserts rows by database/sql, in batches. It gets the ids of a
// batch in one call, before the transaction begins.
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"strconv"

	idalloc "example.com/idalloc/client/go"
	_ "modernc.org/sqlite"
)

func main() {
	count, err := strconv.ParseInt(os.Args[len(os.Args)-1], 10, 64)
	if err != nil || len(os.Args) != 4 {
		log.Fatal("usage: go run . SERVER FILE COUNT")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], count); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server, file string, count int64) error {
	client, err := idalloc.New(server)
	if err != nil {
		return err
	}
	defer client.Close()
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(20000)")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT)")
	for ; count > 0 && err == nil; count -= 1000 {
		var ids idalloc.Range
		if ids, err = client.AllocateRange(ctx, "orders", min(count, 1000)); err == nil {
			err = insert(ctx, db, ids)
		}
	}
	return err
}

func insert(ctx context.Context, db *sql.DB, ids idalloc.Range) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // without effect after Commit
	for id := range ids.All() {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?, ?)", id, "Example Ltd"); err != nil {
			return err
		}
	}
	return tx.Commit()
}
