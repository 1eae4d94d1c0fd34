"""The store in OpenSearch or Elasticsearch."""
