"""A run inside Lightning's Trainer, whose callbacks and progress are then at hand."""

import lightning
from torch import nn

import dpdt
from dpdt.data import load


class Private(lightning.LightningModule):
    automatic_optimization = False  # the step is dpdt's own

    def __init__(self, data, **options):
        super().__init__()
        self.model = nn.Linear(64, 10)
        self.step, self.loader = dpdt.prepare(self.model, data, **options)

    def train_dataloader(self):
        return self.loader  # it decides who is in a mini-batch

    def transfer_batch_to_device(self, batch, device, index):
        return batch  # the step takes it as it was handed out

    def training_step(self, batch):
        self.step(batch)

    def configure_optimizers(self):
        return None


module = Private(load("digits").train, epochs=3, batch_size=360, epsilon=3.0)
lightning.Trainer(max_epochs=3, logger=False, enable_checkpointing=False).fit(module)
print(module.step.result())
