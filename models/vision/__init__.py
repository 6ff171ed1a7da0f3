"""Images: data sets, a small classifier, pictures of many pictures."""
