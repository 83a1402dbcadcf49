"""What `torch.compile` keeps of a region: its graph, recorded as eager ops run, and the partitioner's cut of it."""
