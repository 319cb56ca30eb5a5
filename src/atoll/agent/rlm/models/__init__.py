"""Language models behind one small protocol: by HTTP, scripted, recorded."""
