"""The gRPC services: who may call, what they answer, and the server that hosts them."""
