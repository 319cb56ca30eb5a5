"""Where guest code meets its surroundings: channel, streams, interrupts, memory, descriptors."""
