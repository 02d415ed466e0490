"""Pictures: heat maps by matplotlib, arcs as SVG of our own; ``style.py`` has colours and fonts."""
