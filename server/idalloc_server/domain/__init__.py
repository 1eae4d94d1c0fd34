"""What the service promises, without gRPC and without SQL."""
