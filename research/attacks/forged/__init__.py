"""Archives of evidence that claim what did not happen, with real keys, and true ones: which are accepted?"""
