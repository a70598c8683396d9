"""What the control process and its children share: the messages between them and the socket pair that carries these."""
