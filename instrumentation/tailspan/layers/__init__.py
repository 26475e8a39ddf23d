"""The time of every layer of a model, from steps that are sampled within a budget."""
