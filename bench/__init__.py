"""The product beside its floor, in one run: ``python -m bench``.

Speed on a shared machine is only known by comparison. So every figure that depends on the machine is taken from two
programs that run in turn: the node, and :mod:`bench.floor`, the smallest program that brings a child's output to a
client. The order is reversed every other round, and what counts is the median of the paired ratios.
"""
