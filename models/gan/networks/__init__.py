"""Networks of generative adversarial networks, each as its paper describes it."""
