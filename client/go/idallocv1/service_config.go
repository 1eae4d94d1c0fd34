package idallocv1

import _ "embed"

// ServiceConfig is the retry policy of the service, for grpc.WithDefaultServiceConfig
// in programs without idalloc.Client, which repeats calls itself.
//
//go:embed service_config.json
var ServiceConfig string
