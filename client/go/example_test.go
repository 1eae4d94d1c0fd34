package idalloc_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	idalloc "example.com/idalloc/client/go"
)

func ExampleNew() {
	client, err := idalloc.New("dns:///idalloc.example:50051",
		idalloc.WithTLS(idalloc.TLS{}), // the system's certificates
		idalloc.WithTokenFile("/run/secrets/idalloc-token"),
		idalloc.WithTimeout(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
}

func ExamplePool() {
	client, err := idalloc.New("127.0.0.1:50051")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	orders := client.Pool("orders")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	id, err := orders.Next(ctx)
	if errors.Is(err, idalloc.ErrServerUnreachable) {
		fmt.Println("try again later")
		return
	}
	fmt.Println(id)
}
