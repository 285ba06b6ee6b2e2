import torch


class Rope:
    def forward(self, x: torch.Tensor, positions):
        return x


if True:

    def rotate(x, positions):
        return x


alias = Rope()
