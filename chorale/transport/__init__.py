"""The wire: protobuf messages, chunks of transfers, TLS, channel options."""
