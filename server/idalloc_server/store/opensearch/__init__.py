"""Counters and a witness in OpenSearch, or in Elasticsearch, which is not tested."""
