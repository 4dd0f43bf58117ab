"""What a layout costs before a device is touched: memory, bytes sent, and the speed that both allow."""
