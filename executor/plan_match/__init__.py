"""Whether a plan, the model, the devices and the other ranks go together."""
