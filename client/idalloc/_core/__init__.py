"""The core that both clients share: requests, replies, pools and errors. It does no I/O."""
