"""Generated from proto/ by `make proto`; never edited."""

from node.pb.iop.node.v1 import node_pb2, node_pb2_grpc

__all__ = ["node_pb2", "node_pb2_grpc"]
