"""The forward functions of training frameworks, one folder a framework, on the shape autograd."""
