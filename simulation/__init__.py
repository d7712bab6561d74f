"""A whole job in one process: the silos' own code and the methods' own server steps, without the network.

`engine.Simulation` is what to call. It imports neither coordinator nor cli.
"""
