"""A transformers model with LoRA adapters by peft: only what is trained costs privacy.

The model is tiny and starts at random, so that this runs anywhere in seconds. With real weights it
is `AutoModelForSequenceClassification.from_pretrained("folder")`, and everything else stays. What
is frozen is never touched by noise, and its pretraining data are not protected.

The task: which of two topics is a text about? Most of its words are from the topic's own half of
the vocabulary. Texts have different lengths, and the attention mask says where each ends. Nothing
is tuned: the learning rate fits the noise and the adapters.
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import dpdt

torch.manual_seed(0)


def texts(number):
    """Tokens, a mask and labels, as a tokenizer would give them."""
    topics = torch.randint(2, (number,))
    halves = torch.where(torch.rand(number, 12) < 0.8, topics[:, None], 1 - topics[:, None])
    mask = (torch.arange(12) < torch.randint(6, 13, (number, 1))).long()
    tokens = 2 + torch.randint(20, (number, 12)) + 20 * halves
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": topics}


config = BertConfig(
    vocab_size=42, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
model = get_peft_model(
    BertForSequenceClassification(config), LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8)
)
result = dpdt.train(
    model, texts(2000), test=texts(500), epochs=8, batch_size=500, epsilon=8.0,
)  # fmt: skip
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"accuracy {result.history[-1]['accuracy']:.3f} with {trained:,} trained parameters")
print(result.privacy)
