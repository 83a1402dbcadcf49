"""What a whole step takes of one GPU: weights, gradients, optimizer states, buffers, stages and the verdict."""
