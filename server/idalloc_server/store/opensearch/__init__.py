"""The store in OpenSearch, or in Elasticsearch, which is not tested."""
