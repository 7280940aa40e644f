"""The room of the Trainer: DataModule, cursor, repairs. The only one that imports lightning."""
