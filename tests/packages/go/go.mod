module example.com/consumer

go 1.25.0
