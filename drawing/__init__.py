"""Pictures as SVG, drawn in Python without a dependency: windows, timelines, steps of a stream, small charts."""
