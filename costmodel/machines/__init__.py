"""The machines: clusters, links and collectives over them, the catalogue of hardware."""
