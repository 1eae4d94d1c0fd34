"""JSON documents as in MySQL: their text, criteria and changes, and the protocol of a store."""
